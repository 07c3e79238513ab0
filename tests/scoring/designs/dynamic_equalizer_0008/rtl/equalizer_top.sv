module equalizer_top #(
    parameter TAP_NUM     = 7,
    parameter DATA_WIDTH  = 16,
    parameter COEFF_WIDTH = 16,
    parameter MU          = 15,
    parameter LUT_SIZE    = 16
) (
    input  logic                               clk,
    input  logic                               rst_n,
    input  logic        [$clog2(LUT_SIZE)-1:0] noise_index,
    input  logic signed [DATA_WIDTH-1:0]       noise_scale,
    input  logic signed [DATA_WIDTH-1:0]       data_in_real,
    input  logic signed [DATA_WIDTH-1:0]       data_in_imag,
    output logic signed [DATA_WIDTH-1:0]       data_out_real,
    output logic signed [DATA_WIDTH-1:0]       data_out_imag
);
    logic signed [DATA_WIDTH-1:0] noisy_real, noisy_imag;

    awgn #(
        .DATA_WIDTH(DATA_WIDTH),
        .LUT_SIZE  (LUT_SIZE)
    ) uu_awgn_real (
        .noise_index(noise_index),
        .signal_in  (data_in_real),
        .noise_scale(noise_scale),
        .signal_out (noisy_real)
    );

    awgn #(
        .DATA_WIDTH(DATA_WIDTH),
        .LUT_SIZE  (LUT_SIZE)
    ) uu_awgn_imag (
        .noise_index(noise_index),
        .signal_in  (data_in_imag),
        .noise_scale(noise_scale),
        .signal_out (noisy_imag)
    );

    dynamic_equalizer #(
        .TAP_NUM    (TAP_NUM),
        .DATA_WIDTH (DATA_WIDTH),
        .COEFF_WIDTH(COEFF_WIDTH),
        .MU         (MU)
    ) uu_dynamic_equalizer (
        .clk          (clk),
        .rst_n        (rst_n),
        .data_in_real (noisy_real),
        .data_in_imag (noisy_imag),
        .data_out_real(data_out_real),
        .data_out_imag(data_out_imag)
    );
endmodule
