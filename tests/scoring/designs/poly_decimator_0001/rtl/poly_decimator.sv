`timescale 1ns/1ps
module poly_decimator #(
    parameter M = 4,
    parameter TAPS = 8,
    parameter COEFF_WIDTH = 16,
    parameter DATA_WIDTH = 16,
    localparam ACC_WIDTH = DATA_WIDTH + COEFF_WIDTH + $clog2(TAPS),
    localparam TOTAL_TAPS = M * TAPS
) (
    input  logic                           clk,
    input  logic                           arst_n,
    input  logic [DATA_WIDTH-1:0]          in_sample,
    input  logic                           in_valid,
    output logic                           in_ready,
    output logic [ACC_WIDTH+$clog2(M)-1:0] out_sample,
    output logic                           out_valid
);
    typedef enum logic {ACCUMULATE, OUTPUT} state_t;

    state_t                         state;
    logic [$clog2(M+1)-1:0]         sample_count;
    logic [DATA_WIDTH-1:0]          shift_data [0:TOTAL_TAPS-1];
    logic                           shift_data_val;
    logic [ACC_WIDTH-1:0]           branch_out [0:M-1];
    logic [M-1:0]                   branch_valid;
    logic [ACC_WIDTH+$clog2(M)-1:0] sum;
    logic                           sum_valid;

    wire accept = in_valid && in_ready;
    wire window_ready = shift_data_val && state == OUTPUT;
    wire all_valid = &branch_valid;

    assign in_ready = state == ACCUMULATE;

    shift_register #(.TAPS(TOTAL_TAPS), .DATA_WIDTH(DATA_WIDTH)) u_shift_reg_decim (
        .clk, .arst_n, .load(accept), .new_sample(in_sample), .data_out(shift_data), .data_out_val(shift_data_val)
    );

    generate
        for (genvar p = 0; p < M; p++) begin : poly_branches
            logic [DATA_WIDTH-1:0] branch_samples [0:TAPS-1];

            for (genvar t = 0; t < TAPS; t++) begin : g_sample
                assign branch_samples[t] = shift_data[t*M+p];
            end

            poly_filter #(.M(M), .TAPS(TAPS), .COEFF_WIDTH(COEFF_WIDTH), .DATA_WIDTH(DATA_WIDTH)) u_poly_filter (
                .clk, .arst_n, .sample_buffer(branch_samples), .valid_in(window_ready), .phase($clog2(M)'(p)),
                .filter_out(branch_out[p]), .valid(branch_valid[p])
            );
        end
    endgenerate

    adder_tree #(.NUM_INPUTS(M), .DATA_WIDTH(ACC_WIDTH)) u_adder_tree (
        .clk, .arst_n, .valid_in(all_valid), .data_in(branch_out), .sum_out(sum), .valid_out(sum_valid)
    );

    always_ff @(posedge clk or negedge arst_n)
        if (!arst_n) begin
            state <= ACCUMULATE;
            {sample_count, out_sample, out_valid} <= 0;
        end else begin
            if (state == OUTPUT) begin
                // The branches have taken their samples; what is left to do is pipelined.
                if (all_valid) state <= ACCUMULATE;
            end else if (accept) begin
                sample_count <= sample_count == M - 1 ? 0 : sample_count + 1;
                if (sample_count == M - 1) state <= OUTPUT;
            end

            out_valid <= sum_valid;
            if (sum_valid) out_sample <= sum;
        end
endmodule
