module pseudoRandGenerator_ca (
    input  logic        clock,
    input  logic        reset,
    input  logic [15:0] CA_seed,
    input  logic [1:0]  rule_sel,
    output logic [15:0] CA_out
);
    localparam [7:0] RULE_30 = 30, RULE_110 = 110;

    wire [7:0]  rule = rule_sel == 1 ? RULE_110 : RULE_30;
    logic [15:0] next;

    genvar i;
    generate
        for (i = 0; i < 16; i = i + 1) begin : cell_
            assign next[i] = rule[{CA_out[(i + 1) % 16], CA_out[i], CA_out[(i + 15) % 16]}];
        end
    endgenerate

    always_ff @(posedge clock or posedge reset)
        if (reset) CA_out <= CA_seed;
        else CA_out <= next;
endmodule
