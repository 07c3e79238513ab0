module top_phase_rotation #(
    parameter NBW_ANG      = 7,
    parameter NBW_COS      = 10,
    parameter NBW_IN_DATA  = 8,
    parameter NS_IN        = 2,
    parameter NBW_MULT     = NBW_IN_DATA + NBW_COS,
    parameter NBW_SUM      = NBW_MULT + 1,
    parameter NBW_OUT_DATA = NBW_SUM
) (
    input  logic                                 clk,
    input  logic                                 rst_async_n,
    input  logic                                 i_bypass,
    input  logic                                 i_en_capture_data,
    input  logic                                 i_en_capture_cos_sin,
    input  logic        [NBW_IN_DATA*NS_IN-1:0]  i_data_re,
    input  logic        [NBW_IN_DATA*NS_IN-1:0]  i_data_im,
    input  logic        [NBW_ANG*NS_IN-1:0]      i_angle,
    output logic signed [NBW_OUT_DATA*NS_IN-1:0] o_data_re,
    output logic signed [NBW_OUT_DATA*NS_IN-1:0] o_data_im
);
    logic [NBW_IN_DATA*NS_IN-1:0] data_re, data_im;

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) begin
            data_re <= '0;
            data_im <= '0;
        end else if (i_en_capture_data) begin
            data_re <= i_data_re;
            data_im <= i_data_im;
        end

    for (genvar n = 0; n < NS_IN; n++) begin : gen_lut_phase_rot
        logic signed [NBW_COS-1:0] cosine, sine;

        gen_cos_sin_lut #(
            .NBW_ANG(NBW_ANG),
            .NBW_COS(NBW_COS)
        ) uu_gen_cos_sin_lut (
            .clk                 (clk),
            .rst_async_n         (rst_async_n),
            .i_angle             (i_angle[n*NBW_ANG +: NBW_ANG]),
            .i_en_capture_cos_sin(i_en_capture_cos_sin),
            .o_cos               (cosine),
            .o_sin               (sine)
        );

        phase_rotation #(
            .NBW_IN_DATA (NBW_IN_DATA),
            .NBW_COS     (NBW_COS),
            .NBW_MULT    (NBW_MULT),
            .NBW_SUM     (NBW_SUM),
            .NBW_OUT_DATA(NBW_OUT_DATA)
        ) uu_phase_rotation (
            .clk        (clk),
            .rst_async_n(rst_async_n),
            .i_bypass   (i_bypass),
            .i_data_re  (data_re[n*NBW_IN_DATA +: NBW_IN_DATA]),
            .i_data_im  (data_im[n*NBW_IN_DATA +: NBW_IN_DATA]),
            .i_cos      (cosine),
            .i_sin      (sine),
            .o_data_re  (o_data_re[n*NBW_OUT_DATA +: NBW_OUT_DATA]),
            .o_data_im  (o_data_im[n*NBW_OUT_DATA +: NBW_OUT_DATA])
        );
    end
endmodule
