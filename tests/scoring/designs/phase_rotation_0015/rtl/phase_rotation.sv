module phase_rotation #(
    parameter NBW_IN_DATA  = 8,
    parameter NBW_COS      = 8,
    parameter NBW_MULT     = NBW_IN_DATA + NBW_COS,
    parameter NBW_SUM      = NBW_MULT + 1,
    parameter NBW_OUT_DATA = NBW_SUM
) (
    input  logic                           clk,
    input  logic                           rst_async_n,
    input  logic                           i_bypass,
    input  logic signed [NBW_IN_DATA-1:0]  i_data_re,
    input  logic signed [NBW_IN_DATA-1:0]  i_data_im,
    input  logic signed [NBW_COS-1:0]      i_cos,
    input  logic signed [NBW_COS-1:0]      i_sin,
    output logic signed [NBW_OUT_DATA-1:0] o_data_re,
    output logic signed [NBW_OUT_DATA-1:0] o_data_im
);
    logic signed [NBW_IN_DATA-1:0] re, im;
    logic signed [NBW_COS-1:0]     c, s;
    logic signed [NBW_MULT-1:0]    re_c, re_s, im_c, im_s;
    logic signed [NBW_SUM-1:0]     rotated_re, rotated_im;

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) begin
            re <= '0;
            im <= '0;
            c  <= '0;
            s  <= '0;
        end else begin
            re <= i_data_re;
            im <= i_data_im;
            c  <= i_cos;
            s  <= i_sin;
        end

    assign re_c = re * c;
    assign re_s = re * s;
    assign im_c = im * c;
    assign im_s = im * s;

    assign rotated_re = re_c - im_s;
    assign rotated_im = re_s + im_c;

    assign o_data_re = i_bypass ? i_data_re : rotated_re;
    assign o_data_im = i_bypass ? i_data_im : rotated_im;
endmodule
