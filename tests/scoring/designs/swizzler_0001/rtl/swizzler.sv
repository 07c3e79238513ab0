module swizzler #(
    parameter integer NUM_LANES = 4,
    parameter integer DATA_WIDTH = 8,
    parameter integer REGISTER_OUTPUT = 0,
    parameter integer ENABLE_PARITY_CHECK = 0
) (
    input  wire clk,
    input  wire rst_n,
    input  wire bypass,
    input  wire [NUM_LANES*DATA_WIDTH-1:0] data_in,
    input  wire [NUM_LANES*$clog2(NUM_LANES)-1:0] swizzle_map_flat,
    output reg  [NUM_LANES*DATA_WIDTH-1:0] data_out,
    output reg  parity_error
);
    localparam integer SELECT = $clog2(NUM_LANES);
    wire [NUM_LANES*DATA_WIDTH-1:0] moved;
    wire [NUM_LANES-1:0] odd;
    genvar lane;
    generate
        for (lane = 0; lane < NUM_LANES; lane = lane + 1) begin : lanes
            wire [SELECT-1:0] from = bypass ? lane : swizzle_map_flat[lane*SELECT +: SELECT];
            assign moved[lane*DATA_WIDTH +: DATA_WIDTH] = data_in[from*DATA_WIDTH +: DATA_WIDTH];
            assign odd[lane] = ^moved[lane*DATA_WIDTH +: DATA_WIDTH];
        end
        if (REGISTER_OUTPUT != 0) begin : registered
            always @(posedge clk or negedge rst_n)
                if (!rst_n) {parity_error, data_out} <= 0;
                else {parity_error, data_out} <= {ENABLE_PARITY_CHECK != 0 && |odd, moved};
        end else begin : direct
            always @* {parity_error, data_out} = {ENABLE_PARITY_CHECK != 0 && |odd, moved};
        end
    endgenerate
endmodule
