module S3 (
    input  logic [5:0] i_data,
    output logic [3:0] o_data
);

    // One row of the table per line, column 0 first.
    localparam logic [0:255] TABLE = {
        64'hA09E_63F5_1DC7_B428,
        64'hD709_346A_285E_CBF1,
        64'hD649_8F30_B12C_5AE7,
        64'h1AD0_6987_4FE3_B52C
    };

    logic [5:0] entry;  // {row, column}

    assign entry  = {i_data[5], i_data[0], i_data[4:1]};
    assign o_data = TABLE[4 * entry +: 4];

endmodule
