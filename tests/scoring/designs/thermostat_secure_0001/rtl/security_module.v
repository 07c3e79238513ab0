// Unlocks after the first code is written to address 0 and, as the next write, the second to address 1. Reads change nothing.
module security_module #(
    parameter p_address_width = 8,
    parameter p_data_width = 8,
    parameter p_unlock_code_0 = 8'hAB,
    parameter p_unlock_code_1 = 8'hCD
) (
    input  wire                       i_capture_pulse,
    input  wire                       i_rst,
    input  wire [p_address_width-1:0] i_addr,
    input  wire [p_data_width-1:0]    i_data_in,
    input  wire                       i_read_write_enable,  // 1 reads, 0 writes
    output wire                       o_unlocked
);
    localparam [1:0] LOCKED = 0, HALFWAY = 1, UNLOCKED = 2;
    reg [1:0] state;

    assign o_unlocked = state == UNLOCKED;

    always @(posedge i_capture_pulse or negedge i_rst)
        if (!i_rst)
            state <= LOCKED;
        else if (!i_read_write_enable)
            case (state)
                LOCKED:
                    if (i_addr == 0 && i_data_in == p_unlock_code_0) state <= HALFWAY;
                HALFWAY:
                    state <= i_addr == 1 && i_data_in == p_unlock_code_1 ? UNLOCKED : LOCKED;
                // A wrong code locks again; other addresses are none of this module's business.
                UNLOCKED:
                    if ((i_addr == 0 && i_data_in != p_unlock_code_0) || (i_addr == 1 && i_data_in != p_unlock_code_1))
                        state <= LOCKED;
                default:
                    state <= LOCKED;
            endcase
endmodule
