module S2 (
    input  logic [5:0] i_data,
    output logic [3:0] o_data
);

    // One row of the table per line, column 0 first.
    localparam logic [0:255] TABLE = {
        64'hF18E_6B34_972D_C05A,
        64'h3D47_F28E_C01A_69B5,
        64'h0E7B_A4D1_58C6_932F,
        64'hD8A1_3F42_B67C_05E9
    };

    logic [5:0] entry;  // {row, column}

    assign entry  = {i_data[5], i_data[0], i_data[4:1]};
    assign o_data = TABLE[4 * entry +: 4];

endmodule
