// Unlocks after the first code is written to address 0 and, as the next write, the second to address 1. From then on these
// addresses belong to the history register, so the lock stays open until reset. The capture pulse is the strobe of an access:
// select and enable belong to the bus clock and say nothing here.
module security_module #(
    parameter p_unlock_code_0 = 8'hAB,
    parameter p_unlock_code_1 = 8'hCD
) (
    input  wire       i_capture_pulse,
    input  wire       presetn,
    input  wire [9:0] paddr,
    input  wire       pwrite,
    input  wire [7:0] pwdata,
    output wire       o_unlocked
);
    localparam [1:0] LOCKED = 0, HALFWAY = 1, UNLOCKED = 2;
    reg [1:0] state;

    assign o_unlocked = state == UNLOCKED;

    always @(posedge i_capture_pulse or negedge presetn)
        if (!presetn)
            state <= LOCKED;
        else if (pwrite)
            case (state)
                LOCKED:   if (paddr == 0 && pwdata == p_unlock_code_0) state <= HALFWAY;
                HALFWAY:  state <= paddr == 1 && pwdata == p_unlock_code_1 ? UNLOCKED : LOCKED;
                UNLOCKED: state <= UNLOCKED;
                default:  state <= LOCKED;
            endcase
endmodule
