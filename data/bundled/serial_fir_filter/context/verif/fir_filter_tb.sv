`timescale 1ns / 1ps

// Sends a step and an impulse through a filter of four taps and compares with numbers computed by hand.
module fir_filter_tb;
  localparam N_TAPS = 4;
  localparam DATA_W = 8;
  localparam COEF_W = 8;
  localparam SHIFT = 2;
  localparam OUT_W = 8;

  logic clk = 1'b0;
  logic rst = 1'b1;
  logic flush = 1'b0;
  logic coef_we = 1'b0;
  logic [1:0] coef_addr = '0;
  logic signed [COEF_W-1:0] coef_data = '0;
  logic in_valid = 1'b0;
  logic signed [DATA_W-1:0] in_data = '0;
  logic in_ready, busy, out_valid, out_sat;
  logic signed [OUT_W-1:0] out_data;
  integer errors = 0;
  integer i;

  fir_filter #(.N_TAPS(N_TAPS), .DATA_W(DATA_W), .COEF_W(COEF_W), .SHIFT(SHIFT), .OUT_W(OUT_W)) dut (
    .clk(clk), .rst(rst), .flush(flush), .coef_we(coef_we), .coef_addr(coef_addr), .coef_data(coef_data),
    .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data), .busy(busy), .out_valid(out_valid), .out_data(out_data),
    .out_sat(out_sat)
  );

  always #5 clk = ~clk;

  task automatic check(input string what, input integer got, input integer want);
    if (got !== want) begin
      errors = errors + 1;
      $display("FAIL: at %0t: %s is %0d, expected %0d", $time, what, got, want);
    end
  endtask

  task automatic write(input [1:0] tap, input signed [COEF_W-1:0] value);
    coef_we = 1'b1;
    coef_addr = tap;
    coef_data = value;
    @(negedge clk);
    coef_we = 1'b0;
  endtask

  task automatic sample(input signed [DATA_W-1:0] value, input integer want, input integer want_sat);
    in_valid = 1'b1;
    in_data = value;
    #1 check("in_ready", in_ready, 1);
    @(negedge clk);
    in_valid = 1'b0;
    for (i = 0; i < N_TAPS + 3; i = i + 1) begin
      check("busy during the calculation", busy, 1);
      check("out_valid during the calculation", out_valid, 0);
      @(negedge clk);
    end
    check("out_valid", out_valid, 1);
    check("busy with the result", busy, 0);
    check("out_data", out_data, want);
    check("out_sat", out_sat, want_sat);
  endtask

  initial begin
    repeat (2) @(negedge clk);
    rst = 1'b0;
    check("busy after reset", busy, 0);
    check("out_valid after reset", out_valid, 0);
    write(2'd0, 8'sd4);
    write(2'd1, -8'sd8);
    write(2'd2, 8'sd2);
    write(2'd3, 8'sd127);
    sample(8'sd1, 1, 0);
    sample(8'sd0, -2, 0);
    sample(8'sd0, 1, 0);
    sample(8'sd0, 32, 0);
    sample(8'sd0, 0, 0);
    sample(8'sd10, 10, 0);
    sample(8'sd10, -10, 0);
    sample(8'sd10, -5, 0);
    sample(8'sd10, 127, 1);
    flush = 1'b1;
    @(negedge clk);
    flush = 1'b0;
    sample(-8'sd100, -100, 0);
    if (errors == 0) $display("PASS");
    else $fatal(1, "FAIL: %0d checks failed", errors);
    $finish;
  end
endmodule
