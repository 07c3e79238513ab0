module dynamic_equalizer #(
    parameter TAP_NUM     = 7,
    parameter DATA_WIDTH  = 16,
    parameter COEFF_WIDTH = 16,
    parameter MU          = 15
) (
    input  logic                         clk,
    input  logic                         rst_n,
    input  logic signed [DATA_WIDTH-1:0] data_in_real,
    input  logic signed [DATA_WIDTH-1:0] data_in_imag,
    input  logic signed [DATA_WIDTH-1:0] desired_real,
    input  logic signed [DATA_WIDTH-1:0] desired_imag,
    output logic signed [DATA_WIDTH-1:0] data_out_real,
    output logic signed [DATA_WIDTH-1:0] data_out_imag
);
    localparam ACC_W = DATA_WIDTH + COEFF_WIDTH + 1 + $clog2(TAP_NUM);
    localparam signed [ACC_W-1:0] MAX = (1 << (DATA_WIDTH - 1)) - 1;

    logic signed [DATA_WIDTH-1:0]  x_re [TAP_NUM-1:0];
    logic signed [DATA_WIDTH-1:0]  x_im [TAP_NUM-1:0];
    logic signed [COEFF_WIDTH-1:0] w_re [TAP_NUM-1:0];
    logic signed [COEFF_WIDTH-1:0] w_im [TAP_NUM-1:0];
    logic signed [DATA_WIDTH-1:0]  e_re, e_im;
    logic signed [ACC_W-1:0]       sum_re, sum_im;

    // The coefficients' 13 fractional bits go, what exceeds Q2.13 saturates.
    function automatic logic signed [DATA_WIDTH-1:0] to_data(input logic signed [ACC_W-1:0] sum);
        logic signed [ACC_W-1:0] scaled;
        scaled = sum >>> (COEFF_WIDTH - 3);
        if (scaled > MAX) scaled = MAX;
        else if (scaled < ~MAX) scaled = ~MAX;
        return scaled[DATA_WIDTH-1:0];
    endfunction

    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n)
            for (int k = 0; k < TAP_NUM; k++) begin
                x_re[k] <= '0;
                x_im[k] <= '0;
            end
        else begin
            x_re[0] <= data_in_real;
            x_im[0] <= data_in_imag;
            for (int k = 1; k < TAP_NUM; k++) begin
                x_re[k] <= x_re[k-1];
                x_im[k] <= x_im[k-1];
            end
        end

    always_comb begin
        sum_re = '0;
        sum_im = '0;
        for (int k = 0; k < TAP_NUM; k++) begin
            sum_re = sum_re + w_re[k] * x_re[k] - w_im[k] * x_im[k];
            sum_im = sum_im + w_re[k] * x_im[k] + w_im[k] * x_re[k];
        end
    end

    assign data_out_real = to_data(sum_re);
    assign data_out_imag = to_data(sum_im);

    error_calc #(
        .DATA_WIDTH(DATA_WIDTH)
    ) uu_error_calc (
        .data_real   (data_out_real),
        .data_imag   (data_out_imag),
        .desired_real(desired_real),
        .desired_imag(desired_imag),
        .error_real  (e_re),
        .error_imag  (e_im)
    );

    coeff_update #(
        .TAP_NUM    (TAP_NUM),
        .DATA_WIDTH (DATA_WIDTH),
        .COEFF_WIDTH(COEFF_WIDTH),
        .MU         (MU)
    ) uu_coeff_update (
        .clk       (clk),
        .rst_n     (rst_n),
        .data_real (x_re),
        .data_imag (x_im),
        .error_real(e_re),
        .error_imag(e_im),
        .coeff_real(w_re),
        .coeff_imag(w_im)
    );
endmodule
