module continuous_adder #(
    parameter integer DATA_WIDTH       = 32,
    parameter integer ENABLE_THRESHOLD = 0,
    parameter integer THRESHOLD        = 16,
    parameter integer REGISTER_OUTPUT  = 0
) (
    input  wire clk,
    input  wire rst_n,
    input  wire valid_in,
    input  wire [DATA_WIDTH-1:0] data_in,
    input  wire accumulate_enable,
    input  wire flush,
    output reg  [DATA_WIDTH-1:0] sum_out,
    output reg  sum_valid
);
    reg [DATA_WIDTH-1:0] sum_reg;
    wire reached = ENABLE_THRESHOLD == 0 || sum_reg >= THRESHOLD;

    always @(posedge clk or negedge rst_n)
        if (!rst_n) sum_reg <= 0;
        else if (flush) sum_reg <= 0;
        else if (valid_in && accumulate_enable) sum_reg <= sum_reg + data_in;

    generate
        if (REGISTER_OUTPUT != 0) begin : registered
            always @(posedge clk or negedge rst_n)
                if (!rst_n) {sum_valid, sum_out} <= 0;
                else {sum_valid, sum_out} <= {reached, sum_reg};
        end else begin : direct
            always @* {sum_valid, sum_out} = {reached, sum_reg};
        end
    endgenerate
endmodule
