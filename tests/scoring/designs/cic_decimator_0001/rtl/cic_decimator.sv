`timescale 1ns/1ps
// N integrators at the input's rate, N combs at the output's.
module cic_decimator #(
    parameter WIDTH = 16,
    parameter RMAX = 2,
    parameter M = 1,
    parameter N = 2,
    parameter REG_WIDTH = WIDTH + $clog2((RMAX * M) ** N)
) (
    input  logic                      clk,
    input  logic                      rst,
    input  logic [WIDTH-1:0]          input_tdata,
    input  logic                      input_tvalid,
    output logic                      input_tready,
    output logic [REG_WIDTH-1:0]      output_tdata,
    output logic                      output_tvalid,
    input  logic                      output_tready,
    input  logic [$clog2(RMAX+1)-1:0] rate
);
    logic [REG_WIDTH-1:0] sum [0:N-1];
    logic [REG_WIDTH-1:0] difference [0:N];
    logic [$clog2(RMAX+1)-1:0] cycle_reg;

    assign input_tready = output_tready || cycle_reg != 0;
    assign output_tvalid = input_tvalid && cycle_reg == 0;
    assign output_tdata = difference[N];
    assign difference[0] = sum[N-1];

    genvar k;
    generate
        for (k = 0; k < N; k = k + 1) begin : stage
            wire [REG_WIDTH-1:0] more;
            if (k == 0) assign more = {{(REG_WIDTH - WIDTH){input_tdata[WIDTH-1]}}, input_tdata};
            else assign more = sum[k-1];

            always_ff @(posedge clk)
                if (rst) sum[k] <= 0;
                else if (input_tready && input_tvalid) sum[k] <= sum[k] + more;

            logic [M*REG_WIDTH-1:0] delayed;
            assign difference[k+1] = difference[k] - delayed[M*REG_WIDTH-1 -: REG_WIDTH];

            always_ff @(posedge clk)
                if (rst) delayed <= 0;
                else if (output_tready && output_tvalid) delayed <= {delayed, difference[k]};
        end
    endgenerate

    wire [$clog2(RMAX+1)-1:0] last = rate < RMAX ? rate - 1 : RMAX - 1;

    always_ff @(posedge clk)
        if (rst) cycle_reg <= 0;
        else if (input_tready && input_tvalid) cycle_reg <= cycle_reg < last ? cycle_reg + 1 : 0;
endmodule
