// Galois form, shifting right. The default taps make a 16-bit register run through all states but zero; another width
// needs taps of its own.
module lfsr_generator #(
    parameter WIDTH = 16,
    parameter SEED = 16'hACE1,
    parameter [WIDTH-1:0] TAPS = 16'hB400
) (
    input  logic             clk,
    input  logic             rst_n,
    output logic [WIDTH-1:0] lfsr
);
    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n) lfsr <= SEED;
        else lfsr <= (lfsr >> 1) ^ (lfsr[0] ? TAPS : 0);
endmodule
