module signed_comparator #(
    parameter integer DATA_WIDTH = 16,
    parameter integer REGISTER_OUTPUT = 0,
    parameter integer ENABLE_TOLERANCE = 0,
    parameter integer TOLERANCE = 0,
    parameter integer SHIFT_LEFT = 0
) (
    input  wire clk,
    input  wire rst_n,
    input  wire enable,
    input  wire bypass,
    input  wire signed [DATA_WIDTH-1:0] a,
    input  wire signed [DATA_WIDTH-1:0] b,
    output reg gt,
    output reg lt,
    output reg eq
);
    wire signed [DATA_WIDTH-1:0] left = a <<< SHIFT_LEFT, right = b <<< SHIFT_LEFT;
    wire signed [DATA_WIDTH:0] difference = left - right;
    wire [DATA_WIDTH:0] distance = difference < 0 ? -difference : difference;
    wire near = ENABLE_TOLERANCE != 0 && distance <= TOLERANCE;
    wire [2:0] verdict = bypass ? 3'b001 : !enable ? 3'b000 : (near || left == right) ? 3'b001
        : left > right ? 3'b100 : 3'b010;
    generate
        if (REGISTER_OUTPUT != 0) begin : registered
            always @(posedge clk or negedge rst_n) {gt, lt, eq} <= !rst_n ? 3'b000 : verdict;
        end else begin : direct
            always @* {gt, lt, eq} = verdict;
        end
    endgenerate
endmodule
