module adder_2d_layers #(
    parameter NBW_IN             = 8,
    parameter NS_IN              = 80,
    parameter N_LEVELS           = 7,
    parameter REGS               = 8'b100010_0,
    parameter NBW_ADDER_TREE_OUT = 8,
    parameter NBW_ENERGY         = 5
) (
    input  logic                       clk,
    input  logic                       rst_async_n,
    input  logic                       i_enable,
    input  logic [1:0]                 i_mode,
    input  logic [NBW_IN*NS_IN-1:0]    i_data_i,
    input  logic [NBW_IN*NS_IN-1:0]    i_data_q,
    output logic [NBW_IN+N_LEVELS-1:0] o_data_i,
    output logic [NBW_IN+N_LEVELS-1:0] o_data_q,
    output logic [NBW_ENERGY-1:0]      o_energy,
    output logic                       o_aware_mode
);
    localparam NBW_SQUARE = 2 * NBW_ADDER_TREE_OUT;
    localparam [1:0] LAST_VALID_MODE = 2;

    logic signed [NBW_ADDER_TREE_OUT-1:0] sum_i_dff, sum_q_dff;
    logic        [NBW_SQUARE-1:0]         energy_i, energy_q;
    logic        [NBW_SQUARE:0]           energy;

    adder_tree_2d #(
        .NBW_IN  (NBW_IN),
        .NS_IN   (NS_IN),
        .N_LEVELS(N_LEVELS),
        .REGS    (REGS)
    ) uu_sum_corr_i (
        .clk   (clk),
        .i_data(i_data_i),
        .o_data(o_data_i)
    );

    adder_tree_2d #(
        .NBW_IN  (NBW_IN),
        .NS_IN   (NS_IN),
        .N_LEVELS(N_LEVELS),
        .REGS    (REGS)
    ) uu_sum_corr_q (
        .clk   (clk),
        .i_data(i_data_q),
        .o_data(o_data_q)
    );

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) begin
            sum_i_dff <= '0;
            sum_q_dff <= '0;
        end else if (i_enable) begin
            sum_i_dff <= o_data_i;
            sum_q_dff <= o_data_q;
        end

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) o_aware_mode <= 1'b0;
        else              o_aware_mode <= i_mode <= LAST_VALID_MODE;

    assign energy_i = sum_i_dff * sum_i_dff;
    assign energy_q = sum_q_dff * sum_q_dff;
    assign energy   = energy_i + energy_q;
    assign o_energy = energy[NBW_SQUARE -: NBW_ENERGY];
endmodule
