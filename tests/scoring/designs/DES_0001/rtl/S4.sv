module S4 (
    input  logic [5:0] i_data,
    output logic [3:0] o_data
);

    // One row of the table per line, column 0 first.
    localparam logic [0:255] TABLE = {
        64'h7DE3_069A_1285_BC4F,
        64'hD8B5_6F03_472C_1AE9,
        64'hA690_CB7D_F13E_5284,
        64'h3F06_A1D8_945B_C72E
    };

    logic [5:0] entry;  // {row, column}

    assign entry  = {i_data[5], i_data[0], i_data[4:1]};
    assign o_data = TABLE[4 * entry +: 4];

endmodule
