// Galois LFSR of x^8 + x^6 + x^5 + x + 1, shifted to the right.
module lfsr_8bit (
    input  logic       clock,
    input  logic       reset,
    input  logic [7:0] lfsr_seed,
    output logic [7:0] lfsr_out
);
    localparam logic [7:0] TAPS = 8'b0011_0001;

    always_ff @(posedge clock or negedge reset)
        if (!reset) lfsr_out <= lfsr_seed;
        else lfsr_out <= {lfsr_out[0], lfsr_out[7:1]} ^ (lfsr_out[0] ? TAPS : 8'd0);
endmodule
