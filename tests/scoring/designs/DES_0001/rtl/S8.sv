module S8 (
    input  logic [5:0] i_data,
    output logic [3:0] o_data
);

    // One row of the table per line, column 0 first.
    localparam logic [0:255] TABLE = {
        64'hD284_6FB1_A93E_50C7,
        64'h1FD8_A374_C56B_0E92,
        64'h7B41_9CE2_06AD_F358,
        64'h21E7_4A8D_FC90_356B
    };

    logic [5:0] entry;  // {row, column}

    assign entry  = {i_data[5], i_data[0], i_data[4:1]};
    assign o_data = TABLE[4 * entry +: 4];

endmodule
