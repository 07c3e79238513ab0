`timescale 1ns/1ps
// One bit a channel, whose density follows the sample; second-order error feedback with a little noise.
module sigma_delta_audio #(
    parameter DATA_WIDTH = 15,
    parameter CLOCK_WIDTH = 2,
    parameter READ_WIDTH = 4,
    parameter A1_WIDTH = 2,
    parameter A2_WIDTH = 5
) (
    input  logic                  clk_sig,
    input  logic                  clk_en_sig,
    input  logic [DATA_WIDTH-1:0] load_data_sum,
    input  logic [DATA_WIDTH-1:0] read_data_sum,
    output logic                  left_sig,
    output logic                  right_sig
);
    logic [23:0] seed_1 = 24'h654321, seed_2 = 24'h123456;
    logic [DATA_WIDTH-1:0] left_rest = 0, right_rest = 0;
    logic left_now, right_now;
    logic [DATA_WIDTH-1:0] left_sum, right_sum;

    // Samples below zero have no pulses.
    wire [DATA_WIDTH-1:0] left_level = load_data_sum[DATA_WIDTH-1] ? 0 : load_data_sum << 1;
    wire [DATA_WIDTH-1:0] right_level = read_data_sum[DATA_WIDTH-1] ? 0 : read_data_sum << 1;
    wire noise = seed_1[0] ^ seed_2[0];

    assign {left_now, left_sum} = {1'b0, left_rest} + left_level + noise;
    assign {right_now, right_sum} = {1'b0, right_rest} + right_level + noise;

    initial {left_sig, right_sig} = 0;

    always_ff @(posedge clk_sig)
        if (clk_en_sig) begin
            seed_1 <= {seed_1[22:0], seed_1[23] ^ seed_1[22] ^ seed_1[21] ^ seed_1[16]};
            seed_2 <= {seed_2[22:0], seed_2[23] ^ seed_2[22] ^ seed_2[20] ^ seed_2[19]};
            {left_sig, left_rest} <= {left_now, left_sum};
            {right_sig, right_rest} <= {right_now, right_sum};
        end
endmodule
