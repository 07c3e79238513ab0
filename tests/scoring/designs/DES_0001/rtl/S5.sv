module S5 (
    input  logic [5:0] i_data,
    output logic [3:0] o_data
);

    // One row of the table per line, column 0 first.
    localparam logic [0:255] TABLE = {
        64'h2C41_7AB6_853F_D0E9,
        64'hEB2C_47D1_50FA_3986,
        64'h421B_AD78_F9C5_630E,
        64'hB8C7_1E2D_6F09_A453
    };

    logic [5:0] entry;  // {row, column}

    assign entry  = {i_data[5], i_data[0], i_data[4:1]};
    assign o_data = TABLE[4 * entry +: 4];

endmodule
