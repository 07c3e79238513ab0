module cross_correlation #(
    parameter NS_DATA_IN  = 11,
    parameter NBW_DATA_IN = 8,
    parameter NBI_DATA_IN = 2,
    parameter NBW_ENERGY  = 8
) (
    input  logic                              clk,
    input  logic                              rst_async_n,
    input  logic                              i_enable,
    input  logic [1:0]                        i_mode,
    input  logic [NBW_DATA_IN*NS_DATA_IN-1:0] i_data_i,
    input  logic [NBW_DATA_IN*NS_DATA_IN-1:0] i_data_q,
    input  logic [NS_DATA_IN-1:0]             i_conj_seq_i,
    input  logic [NS_DATA_IN-1:0]             i_conj_seq_q,
    output logic [NBW_ENERGY-1:0]             o_energy,
    output logic                              o_aware_mode
);
    localparam N_LEVELS = $clog2(NS_DATA_IN);
    localparam REGS     = 8'b0;  // one bit a level: the whole tree is combinational
    localparam NBW_TERM = NBW_DATA_IN + 2;
    localparam NBW_TREE = NBW_TERM + N_LEVELS;

    logic [NBW_TERM*NS_DATA_IN-1:0] terms_i, terms_q;

    correlate #(
        .NS_DATA_IN       (NS_DATA_IN),
        .NBW_DATA_IN      (NBW_DATA_IN),
        .NBW_ADDER_TREE_IN(NBW_TERM)
    ) uu_correlate (
        .i_mode      (i_mode),
        .i_data_i    (i_data_i),
        .i_data_q    (i_data_q),
        .i_conj_seq_i(i_conj_seq_i),
        .i_conj_seq_q(i_conj_seq_q),
        .o_sum_i     (terms_i),
        .o_sum_q     (terms_q)
    );

    adder_2d_layers #(
        .NBW_IN            (NBW_TERM),
        .NS_IN             (NS_DATA_IN),
        .N_LEVELS          (N_LEVELS),
        .REGS              (REGS),
        .NBW_ADDER_TREE_OUT(NBW_TREE),
        .NBW_ENERGY        (NBW_ENERGY)
    ) uu_adder_2d_layers (
        .clk         (clk),
        .rst_async_n (rst_async_n),
        .i_enable    (i_enable),
        .i_mode      (i_mode),
        .i_data_i    (terms_i),
        .i_data_q    (terms_q),
        .o_data_i    (),
        .o_data_q    (),
        .o_energy    (o_energy),
        .o_aware_mode(o_aware_mode)
    );
endmodule
