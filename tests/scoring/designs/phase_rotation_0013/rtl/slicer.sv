module slicer #(
    parameter NBW_IN  = 7,
    parameter NBW_TH  = 7,
    parameter NBW_REF = 7,
    parameter NBW_OUT = (NBW_TH > NBW_REF ? NBW_TH : NBW_REF) + 1
) (
    input  logic signed [NBW_IN-1:0]  i_data,
    input  logic signed [NBW_TH-1:0]  i_threshold,
    input  logic signed [NBW_REF-1:0] i_sample_pos,
    output logic signed [NBW_OUT-1:0] o_data
);
    // One bit more than the threshold, so that its most negative value can be negated too.
    logic signed [NBW_TH:0] limit_pos, limit_neg;

    assign limit_pos = i_threshold;
    assign limit_neg = -limit_pos;

    always_comb
        if (i_data >= limit_pos)      o_data = i_sample_pos + i_threshold;
        else if (!i_data[NBW_IN-1])   o_data = i_sample_pos;
        else if (i_data >= limit_neg) o_data = -i_sample_pos;
        else                          o_data = -i_sample_pos - i_threshold;
endmodule
