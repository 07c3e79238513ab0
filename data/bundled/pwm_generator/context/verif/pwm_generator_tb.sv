`timescale 1ns / 1ps

// Measures a handful of periods: their length and their number of high cycles.
module pwm_generator_tb;
  localparam WIDTH = 8;

  logic clk = 1'b0;
  logic rst_n = 1'b0;
  logic enable = 1'b0;
  logic [WIDTH-1:0] top = '0;
  logic [WIDTH-1:0] duty = '0;
  logic pwm_out, period_start;
  integer errors = 0;

  pwm_generator #(.WIDTH(WIDTH)) dut (
    .clk(clk), .rst_n(rst_n), .enable(enable), .top(top), .duty(duty), .pwm_out(pwm_out), .period_start(period_start)
  );

  always #5 clk = ~clk;

  task automatic check(input string what, input integer got, input integer want);
    if (got !== want) begin
      errors = errors + 1;
      $display("FAIL: at %0t: %s is %0d, expected %0d", $time, what, got, want);
    end
  endtask

  // Starts the modulator, measures its first period, and stops it again.
  task automatic measure(input [WIDTH-1:0] set_top, input [WIDTH-1:0] set_duty);
    integer length, high, limit;
    top = set_top;
    duty = set_duty;
    enable = 1'b1;
    @(negedge clk);
    check("period_start in the first cycle", period_start, 1);
    top = ~set_top;
    duty = ~set_duty;
    length = 0;
    high = 0;
    limit = set_top + 1;
    while (length < limit) begin
      if (pwm_out === 1'b1) high = high + 1;
      length = length + 1;
      @(negedge clk);
      if (length < limit) check("period_start inside the period", period_start, 0);
    end
    check("period_start of the next period", period_start, 1);
    check("number of high cycles", high, (set_duty > set_top) ? set_top + 1 : set_duty);
    enable = 1'b0;
    @(negedge clk);
    check("pwm_out when stopped", pwm_out, 0);
    check("period_start when stopped", period_start, 0);
  endtask

  initial begin
    repeat (2) @(negedge clk);
    check("pwm_out in reset", pwm_out, 0);
    check("period_start in reset", period_start, 0);
    rst_n = 1'b1;
    @(negedge clk);
    measure(8'd4, 8'd2);
    measure(8'd9, 8'd0);
    measure(8'd6, 8'd7);
    measure(8'd6, 8'd6);
    measure(8'd1, 8'd1);
    measure(8'd255, 8'd255);
    if (errors == 0) $display("PASS");
    else $fatal(1, "FAIL: %0d checks failed", errors);
    $finish;
  end
endmodule
