`timescale 1ns/1ps
module swizzler_supervisor #(
    parameter integer NUM_LANES = 4,
    parameter integer DATA_WIDTH = 8,
    parameter integer REGISTER_OUTPUT = 1,
    parameter integer ENABLE_PARITY_CHECK = 1,
    parameter integer OP_MODE_WIDTH = 2,
    parameter integer SWIZZLE_MAP_WIDTH = $clog2(NUM_LANES) + 1,
    parameter [DATA_WIDTH-1:0] EXPECTED_CHECKSUM = 8'hA5
) (
    input  wire                                   clk,
    input  wire                                   rst_n,
    input  wire                                   bypass,
    input  wire [NUM_LANES*DATA_WIDTH-1:0]        data_in,
    input  wire [NUM_LANES*SWIZZLE_MAP_WIDTH-1:0] swizzle_map_flat,
    input  wire [OP_MODE_WIDTH-1:0]               operation_mode,
    output reg  [NUM_LANES*DATA_WIDTH-1:0]        final_data_out,
    output reg                                    top_error
);
    wire [NUM_LANES*DATA_WIDTH-1:0] swizzled;
    wire parity_error, invalid_mapping_error;
    reg  [DATA_WIDTH-1:0] checksum;
    integer i;

    swizzler #(
        .NUM_LANES(NUM_LANES), .DATA_WIDTH(DATA_WIDTH), .REGISTER_OUTPUT(REGISTER_OUTPUT),
        .ENABLE_PARITY_CHECK(ENABLE_PARITY_CHECK), .OP_MODE_WIDTH(OP_MODE_WIDTH), .SWIZZLE_MAP_WIDTH(SWIZZLE_MAP_WIDTH)
    ) inner (
        .clk(clk), .rst_n(rst_n), .bypass(bypass), .data_in(data_in), .swizzle_map_flat(swizzle_map_flat),
        .operation_mode(operation_mode), .data_out(swizzled), .parity_error(parity_error),
        .invalid_mapping_error(invalid_mapping_error)
    );

    always @* begin
        checksum = 0;
        for (i = 0; i < NUM_LANES; i = i + 1) checksum = checksum ^ swizzled[i*DATA_WIDTH +: DATA_WIDTH];
    end

    always @(posedge clk or negedge rst_n)
        if (!rst_n) {final_data_out, top_error} <= 0;
        else begin
            final_data_out <= swizzled ^ {NUM_LANES{{DATA_WIDTH - 1{1'b0}}, 1'b1}};
            top_error <= parity_error || invalid_mapping_error || checksum != EXPECTED_CHECKSUM;
        end
endmodule
