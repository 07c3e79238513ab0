module S1 (
    input  logic [5:0] i_data,
    output logic [3:0] o_data
);

    // One row of the table per line, column 0 first.
    localparam logic [0:255] TABLE = {
        64'hE4D1_2FB8_3A6C_5907,
        64'h0F74_E2D1_A6CB_9538,
        64'h41E8_D62B_FC97_3A50,
        64'hFC82_4917_5B3E_A06D
    };

    logic [5:0] entry;  // {row, column}

    assign entry  = {i_data[5], i_data[0], i_data[4:1]};
    assign o_data = TABLE[4 * entry +: 4];

endmodule
