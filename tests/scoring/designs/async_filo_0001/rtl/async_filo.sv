`timescale 1ns/1ps
// Each side counts what it did and learns the other's count in Gray code; their difference is the height of the stack.
module async_filo #(
    parameter DATA_WIDTH = 16,
    parameter DEPTH = 8,
    localparam BITS = $clog2(DEPTH) + 1
) (
    input  logic                  w_clk,
    input  logic                  w_rst,
    input  logic                  push,
    input  logic                  r_clk,
    input  logic                  r_rst,
    input  logic                  pop,
    input  logic [DATA_WIDTH-1:0] w_data,
    output logic [DATA_WIDTH-1:0] r_data,
    output logic                  r_empty,
    output logic                  w_full
);
    function automatic [BITS-1:0] bin2gray(input [BITS-1:0] value);
        bin2gray = value ^ (value >> 1);
    endfunction

    function automatic [BITS-1:0] gray2bin(input [BITS-1:0] value);
        for (int i = 0; i < BITS; i++) gray2bin[i] = ^(value >> i);
    endfunction

    logic [DATA_WIDTH-1:0] mem [0:DEPTH-1];
    logic [BITS-1:0] w_count, r_count, w_ptr, r_ptr, wq1_rptr, wq2_rptr, rq1_wptr, rq2_wptr;

    initial for (int i = 0; i < DEPTH; i++) mem[i] = 0;

    wire [BITS-1:0] w_height = w_count - gray2bin(wq2_rptr);
    wire [BITS-1:0] r_height = gray2bin(rq2_wptr) - r_count;

    assign w_full = w_height == DEPTH;
    assign r_empty = r_height == 0;
    assign r_data = mem[r_empty ? 0 : r_height - 1];

    always_ff @(posedge w_clk or posedge w_rst)
        if (w_rst) {w_count, w_ptr, wq1_rptr, wq2_rptr} <= 0;
        else begin
            {wq2_rptr, wq1_rptr} <= {wq1_rptr, r_ptr};
            if (push && !w_full) begin
                mem[w_height] <= w_data;
                w_count <= w_count + 1;
                w_ptr <= bin2gray(w_count + 1);
            end
        end

    always_ff @(posedge r_clk or posedge r_rst)
        if (r_rst) {r_count, r_ptr, rq1_wptr, rq2_wptr} <= 0;
        else begin
            {rq2_wptr, rq1_wptr} <= {rq1_wptr, w_ptr};
            if (pop && !r_empty) begin
                r_count <= r_count + 1;
                r_ptr <= bin2gray(r_count + 1);
            end
        end
endmodule
