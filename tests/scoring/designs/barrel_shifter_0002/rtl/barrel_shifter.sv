module barrel_shifter (
    input        [7:0] data_in,
    input        [2:0] shift_bits,
    input              left_right,
    input              shift_mode,
    output logic [7:0] data_out
);
    wire signed [8:0] extended = {shift_mode & data_in[7], data_in};
    wire signed [8:0] right = extended >>> shift_bits;

    assign data_out = left_right ? data_in << shift_bits : right[7:0];
endmodule
