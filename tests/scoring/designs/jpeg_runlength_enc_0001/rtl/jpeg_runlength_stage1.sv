module jpeg_runlength_stage1 (
    input  logic        clk_in,
    input  logic        reset_in,
    input  logic        enable_in,
    input  logic        go_in,
    input  logic [11:0] din_in,
    output logic [3:0]  rlen_out,
    output logic [3:0]  size_out,
    output logic [11:0] amp_out,
    output logic        den_out,
    output logic        dcterm_out
);
    localparam LAST = 63;

    logic       active;  // a block is under way
    logic [5:0] index;   // of the coefficient on din_in
    logic [3:0] run;

    wire negative = din_in[11];
    wire zero = din_in == 0;
    wire dc = index == 0;
    wire last = index == LAST;

    function automatic [3:0] bits(input [11:0] magnitude);
        bits = 0;
        for (int i = 0; i < 12; i++) if (magnitude[i]) bits = i + 1;
    endfunction

    always_ff @(posedge clk_in)
        if (reset_in) {active, index, run, rlen_out, size_out, amp_out, den_out, dcterm_out} <= 0;
        else if (enable_in) begin
            if (go_in) {active, index} <= {1'b1, 6'd0};
            else if (last) {active, index} <= 0;
            else if (active) index <= index + 1;

            run <= active && !dc && zero && !last ? run + 1 : 0;  // the sixteenth zero wraps round

            rlen_out <= dc || (zero && last) ? 0 : run;
            size_out <= bits(negative ? -din_in : din_in);
            amp_out <= din_in - negative;
            den_out <= active && (dc || last || !zero || run == 15);
            dcterm_out <= active && dc;
        end
endmodule
