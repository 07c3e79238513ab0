module correlate #(
    parameter NS_DATA_IN        = 11,
    parameter NBW_DATA_IN       = 8,
    parameter NBW_ADDER_TREE_IN = 3
) (
    input  logic [1:0]                              i_mode,
    input  logic [NBW_DATA_IN*NS_DATA_IN-1:0]       i_data_i,
    input  logic [NBW_DATA_IN*NS_DATA_IN-1:0]       i_data_q,
    input  logic [NS_DATA_IN-1:0]                   i_conj_seq_i,
    input  logic [NS_DATA_IN-1:0]                   i_conj_seq_q,
    output logic [NBW_ADDER_TREE_IN*NS_DATA_IN-1:0] o_sum_i,
    output logic [NBW_ADDER_TREE_IN*NS_DATA_IN-1:0] o_sum_q
);
    for (genvar n = 0; n < NS_DATA_IN; n++) begin : g_sample
        logic signed [NBW_DATA_IN-1:0]       re, im;
        logic signed [NBW_ADDER_TREE_IN-1:0] add, sub, sum_i, sum_q;

        assign re  = i_data_i[n*NBW_DATA_IN +: NBW_DATA_IN];
        assign im  = i_data_q[n*NBW_DATA_IN +: NBW_DATA_IN];
        assign add = re + im;
        assign sub = re - im;

        // Mode 0 multiplies by the reference (+-1, +-j), of which the sequences give the signs.
        always_comb
            case (i_mode)
                2'd0:
                    case ({i_conj_seq_i[n], i_conj_seq_q[n]})
                        2'b00: begin sum_i = sub;  sum_q = add;  end
                        2'b01: begin sum_i = add;  sum_q = -sub; end
                        2'b10: begin sum_i = -add; sum_q = sub;  end
                        2'b11: begin sum_i = -sub; sum_q = -add; end
                    endcase
                2'd1:    begin sum_i = sub; sum_q = sub; end
                2'd2:    begin sum_i = add; sum_q = add; end
                default: begin sum_i = '0;  sum_q = '0;  end
            endcase

        assign o_sum_i[n*NBW_ADDER_TREE_IN +: NBW_ADDER_TREE_IN] = sum_i;
        assign o_sum_q[n*NBW_ADDER_TREE_IN +: NBW_ADDER_TREE_IN] = sum_q;
    end
endmodule
