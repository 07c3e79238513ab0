module event_storage #(
    parameter NBW_STR = 'd4,
    parameter NS_EVT  = 'd4,
    parameter NBW_EVT = 'd2
) (
    input  logic               clk,
    input  logic               rst_async_n,
    input  logic               i_en_overflow,
    input  logic [NS_EVT-1:0]  i_event,
    input  logic [NBW_STR-1:0] i_data,
    input  logic               i_bypass,
    input  logic [NBW_EVT-1:0] i_raddr,
    output logic [NBW_STR-1:0] o_data
);
    logic [NBW_STR-1:0] reg_bank [0:NS_EVT-1];

    always_ff @(posedge clk or negedge rst_async_n)
        for (int e = 0; e < NS_EVT; e++)
            if (!rst_async_n) reg_bank[e] <= '0;
            else if (i_event[e] && (i_en_overflow || !(&reg_bank[e]))) reg_bank[e] <= reg_bank[e] + 1'b1;

    assign o_data = i_bypass ? i_data : reg_bank[i_raddr];
endmodule
