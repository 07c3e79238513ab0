module lfsr_8bit (
    input  wire       clk,
    input  wire       rst,
    input  wire [7:0] seed,
    output reg  [7:0] lfsr_out
);
    wire feedback = ^(lfsr_out & 8'b1011_1000);

    always @(posedge clk or posedge rst)
        if (rst) lfsr_out <= seed;
        else lfsr_out <= {lfsr_out[6:0], feedback};
endmodule
