module multiplexer #(
    parameter DATA_WIDTH = 8,
    parameter NUM_INPUTS = 4,
    parameter REGISTER_OUTPUT = 0,
    parameter HAS_DEFAULT = 0,
    parameter [DATA_WIDTH-1:0] DEFAULT_VALUE = {DATA_WIDTH{1'b0}}
) (
    input  wire clk,
    input  wire rst_n,
    input  wire [(DATA_WIDTH*NUM_INPUTS)-1:0] inp,
    input  wire [$clog2(NUM_INPUTS)-1:0] sel,
    input  wire bypass,
    output reg  [DATA_WIDTH-1:0] out
);
    wire [DATA_WIDTH-1:0] chosen = bypass ? inp[0 +: DATA_WIDTH]
        : (HAS_DEFAULT != 0 && sel >= NUM_INPUTS) ? DEFAULT_VALUE : inp[sel*DATA_WIDTH +: DATA_WIDTH];
    generate
        if (REGISTER_OUTPUT != 0) begin : registered
            always @(posedge clk or negedge rst_n) out <= !rst_n ? {DATA_WIDTH{1'b0}} : chosen;
        end else begin : direct
            always @* out = chosen;
        end
    endgenerate
endmodule
