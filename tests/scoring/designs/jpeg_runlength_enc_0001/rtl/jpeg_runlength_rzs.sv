// One entry is kept. It is shown at once, but for a zero run, which waits for what follows it: the end of the block makes
// it redundant.
module jpeg_runlength_rzs (
    input  logic        clk_in,
    input  logic        reset_in,
    input  logic        enable_in,
    input  logic [3:0]  rlen_in,
    input  logic [3:0]  size_in,
    input  logic [11:0] amp_in,
    input  logic        den_in,
    input  logic        dc_in,
    output logic [3:0]  rlen_out,
    output logic [3:0]  size_out,
    output logic [11:0] amp_out,
    output logic        den_out,
    output logic        dc_out
);
    logic kept;

    wire eob_in = den_in && !dc_in && rlen_in == 0 && size_in == 0;
    wire zero_run = rlen_out == 15 && size_out == 0;

    assign den_out = kept && (!zero_run || (den_in && !eob_in));

    always_ff @(posedge clk_in)
        if (reset_in) {kept, rlen_out, size_out, amp_out, dc_out} <= 0;
        else if (enable_in) begin
            if (den_in) {kept, rlen_out, size_out, amp_out, dc_out} <= {1'b1, rlen_in, size_in, amp_in, dc_in};
            else if (!zero_run) {kept, dc_out} <= 0;
        end
endmodule
