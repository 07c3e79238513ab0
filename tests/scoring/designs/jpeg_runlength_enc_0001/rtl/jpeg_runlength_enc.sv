// A block's coefficients start on the clock after its strobe. Sixty-three zeros make three zero runs at most; each stage
// takes one of those that the end of the block makes redundant.
module jpeg_runlength_enc (
    input  logic        clk_in,
    input  logic        reset_in,
    input  logic        enable_in,
    input  logic        dstrb_in,
    input  logic [11:0] din_in,
    output logic [3:0]  rlen_out,
    output logic [3:0]  size_out,
    output logic [11:0] amp_out,
    output logic        douten_out,
    output logic        bstart_out
);
    localparam STAGES = 4;

    logic [3:0]  rlen [0:STAGES];
    logic [3:0]  size [0:STAGES];
    logic [11:0] amp  [0:STAGES];
    logic        den  [0:STAGES];
    logic        dc   [0:STAGES];

    jpeg_runlength_stage1 u_stage1 (
        .clk_in, .reset_in, .enable_in, .go_in(dstrb_in), .din_in,
        .rlen_out(rlen[0]), .size_out(size[0]), .amp_out(amp[0]), .den_out(den[0]), .dcterm_out(dc[0])
    );

    generate
        for (genvar i = 0; i < STAGES; i++) begin : g_rzs
            jpeg_runlength_rzs u_rzs (
                .clk_in, .reset_in, .enable_in,
                .rlen_in(rlen[i]), .size_in(size[i]), .amp_in(amp[i]), .den_in(den[i]), .dc_in(dc[i]),
                .rlen_out(rlen[i+1]), .size_out(size[i+1]), .amp_out(amp[i+1]), .den_out(den[i+1]), .dc_out(dc[i+1])
            );
        end
    endgenerate

    assign rlen_out = rlen[STAGES];
    assign size_out = size[STAGES];
    assign amp_out = amp[STAGES];
    assign douten_out = den[STAGES];
    assign bstart_out = dc[STAGES];
endmodule
