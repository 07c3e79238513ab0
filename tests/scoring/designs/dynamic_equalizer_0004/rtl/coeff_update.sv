// MCMA: w -= 2^-MU * e * conj(x)
module coeff_update #(
    parameter TAP_NUM     = 7,
    parameter DATA_WIDTH  = 16,
    parameter COEFF_WIDTH = 16,
    parameter MU          = 15
) (
    input  logic                          clk,
    input  logic                          rst_n,
    input  logic signed [DATA_WIDTH-1:0]  data_real  [TAP_NUM-1:0],
    input  logic signed [DATA_WIDTH-1:0]  data_imag  [TAP_NUM-1:0],
    input  logic signed [DATA_WIDTH-1:0]  error_real,
    input  logic signed [DATA_WIDTH-1:0]  error_imag,
    output logic signed [COEFF_WIDTH-1:0] coeff_real [TAP_NUM-1:0],
    output logic signed [COEFF_WIDTH-1:0] coeff_imag [TAP_NUM-1:0]
);
    // Steps scaled by 2^-MU are mostly far below a coefficient's last bit, and cutting them off would
    // either stop the adaptation or bias it. So the accumulators keep every fractional bit of e*x*2^-MU.
    localparam EXTRA  = 2 * (DATA_WIDTH - 3) + MU - (COEFF_WIDTH - 3);
    localparam ACC_W  = COEFF_WIDTH + EXTRA;
    localparam STEP_W = 2 * DATA_WIDTH + 1;
    localparam signed [ACC_W-1:0] ONE = 1 << (COEFF_WIDTH - 3);

    function automatic logic signed [ACC_W-1:0] step(
        input logic signed [ACC_W-1:0]  acc,
        input logic signed [STEP_W-1:0] delta
    );
        logic signed [ACC_W:0] sum;
        sum = acc - delta;
        if (sum[ACC_W] != sum[ACC_W-1])
            return {sum[ACC_W], {(ACC_W - 1){~sum[ACC_W]}}};
        return sum[ACC_W-1:0];
    endfunction

    for (genvar k = 0; k < TAP_NUM; k++) begin : g_tap
        logic signed [ACC_W-1:0]  acc_re, acc_im;
        logic signed [STEP_W-1:0] grad_re, grad_im;

        assign grad_re = error_real * data_real[k] + error_imag * data_imag[k];
        assign grad_im = error_imag * data_real[k] - error_real * data_imag[k];

        always_ff @(posedge clk or negedge rst_n)
            if (!rst_n) begin
                acc_re <= (k == (TAP_NUM - 1) / 2) ? ONE <<< EXTRA : '0;
                acc_im <= '0;
            end else begin
                acc_re <= step(acc_re, grad_re);
                acc_im <= step(acc_im, grad_im);
            end

        assign coeff_real[k] = acc_re[ACC_W-1 -: COEFF_WIDTH];
        assign coeff_imag[k] = acc_im[ACC_W-1 -: COEFF_WIDTH];
    end
endmodule
