module S7 (
    input  logic [5:0] i_data,
    output logic [3:0] o_data
);

    // One row of the table per line, column 0 first.
    localparam logic [0:255] TABLE = {
        64'h4B2E_F08D_3C97_5A61,
        64'hD0B7_491A_E35C_2F86,
        64'h14BD_C37E_AF68_0592,
        64'h6BD8_14A7_950F_E23C
    };

    logic [5:0] entry;  // {row, column}

    assign entry  = {i_data[5], i_data[0], i_data[4:1]};
    assign o_data = TABLE[4 * entry +: 4];

endmodule
