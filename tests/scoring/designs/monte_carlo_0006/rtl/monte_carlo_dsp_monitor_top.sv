`timescale 1ns/1ps
module monte_carlo_dsp_monitor_top #(
    parameter DATA_WIDTH = 16,
    parameter SEED_A = 16'hACE1,
    parameter SEED_B = 16'hBEEF
) (
    input  logic                  clk_a,
    input  logic                  clk_b,
    input  logic                  rst_n,
    input  logic [DATA_WIDTH-1:0] data_in_a,
    input  logic                  valid_in_a,
    output logic [DATA_WIDTH-1:0] data_out_b,
    output logic                  valid_out_b,
    output logic [31:0]           cross_domain_transfer_count
);
    logic [DATA_WIDTH-1:0] mask_a, mask_b, masked_a, masked_b;
    logic                  masked_a_valid, masked_b_valid;

    lfsr_generator #(.WIDTH(DATA_WIDTH), .SEED(SEED_A)) u_lfsr_a (.clk(clk_a), .rst_n, .lfsr(mask_a));
    lfsr_generator #(.WIDTH(DATA_WIDTH), .SEED(SEED_B)) u_lfsr_b (.clk(clk_b), .rst_n, .lfsr(mask_b));

    dsp_input_stage #(.DATA_WIDTH(DATA_WIDTH)) u_input_stage (
        .clk(clk_a), .rst_n, .data_in(data_in_a), .valid_in(valid_in_a), .rand_mask(mask_a),
        .data_out(masked_a), .valid_out(masked_a_valid)
    );

    cross_domain_sync #(.DATA_WIDTH(DATA_WIDTH)) u_cross_sync (
        .clk_src(clk_a), .clk_dst(clk_b), .rst_n, .data_src(masked_a), .valid_src(masked_a_valid),
        .data_dst(masked_b), .valid_dst(masked_b_valid)
    );

    dsp_output_stage #(.DATA_WIDTH(DATA_WIDTH)) u_output_stage (
        .clk(clk_b), .rst_n, .data_in(masked_b), .valid_in(masked_b_valid), .rand_mask(mask_b),
        .data_out(data_out_b), .valid_out(valid_out_b), .transfer_count(cross_domain_transfer_count)
    );
endmodule
