module S6 (
    input  logic [5:0] i_data,
    output logic [3:0] o_data
);

    // One row of the table per line, column 0 first.
    localparam logic [0:255] TABLE = {
        64'hC1AF_9268_0D34_E75B,
        64'hAF42_7C95_61DE_0B38,
        64'h9EF5_28C3_704A_1DB6,
        64'h432C_95FA_BE17_608D
    };

    logic [5:0] entry;  // {row, column}

    assign entry  = {i_data[5], i_data[0], i_data[4:1]};
    assign o_data = TABLE[4 * entry +: 4];

endmodule
