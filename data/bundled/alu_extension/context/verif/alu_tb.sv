`timescale 1ns / 1ps

// Checks results and flags of version 2 with a few operands each; far from complete.
module alu_tb;
  localparam WIDTH = 8;

  logic clk = 1'b0;
  logic rst_n = 1'b0;
  logic in_valid = 1'b0;
  logic [3:0] opcode = 4'd0;
  logic [WIDTH-1:0] a = '0;
  logic [WIDTH-1:0] b = '0;
  logic set_flags = 1'b1;
  logic clear_sticky = 1'b0;
  logic out_valid, zero, negative, carry, overflow, parity, illegal, sat_sticky;
  logic [WIDTH-1:0] result;
  integer errors = 0;

  alu #(.WIDTH(WIDTH)) dut (
    .clk(clk), .rst_n(rst_n), .in_valid(in_valid), .opcode(opcode), .a(a), .b(b), .set_flags(set_flags),
    .clear_sticky(clear_sticky), .out_valid(out_valid), .result(result), .zero(zero), .negative(negative), .carry(carry),
    .overflow(overflow), .parity(parity), .illegal(illegal), .sat_sticky(sat_sticky)
  );

  always #5 clk = ~clk;

  task automatic expect_bit(input string what, input logic got, input logic want);
    if (got !== want) begin
      errors = errors + 1;
      $display("FAIL: opcode %0d: %s is %b, expected %b", opcode, what, got, want);
    end
  endtask

  // One operation and an idle cycle after it; `c` and `v` are the carry and overflow to expect.
  task automatic run(input [3:0] op, input [WIDTH-1:0] x, input [WIDTH-1:0] y, input [WIDTH-1:0] want, input c, input v);
    in_valid = 1'b1;
    opcode = op;
    a = x;
    b = y;
    @(negedge clk);
    in_valid = 1'b0;
    expect_bit("out_valid", out_valid, 1'b1);
    if (result !== want) begin
      errors = errors + 1;
      $display("FAIL: opcode %0d, a %h, b %h: result %h, expected %h", op, x, y, result, want);
    end
    expect_bit("zero", zero, want == 0);
    expect_bit("negative", negative, want[WIDTH-1]);
    expect_bit("parity", parity, ^want);
    expect_bit("carry", carry, c);
    expect_bit("overflow", overflow, v);
    a = ~x;
    @(negedge clk);
    expect_bit("out_valid of an idle cycle", out_valid, 1'b0);
    expect_bit("held result", result === want, 1'b1);
  endtask

  initial begin
    repeat (2) @(negedge clk);
    expect_bit("any output in reset",
               |{out_valid, result, zero, negative, carry, overflow, parity, illegal, sat_sticky}, 1'b0);
    rst_n = 1'b1;
    run(4'd0, 8'd200, 8'd100, 8'd44, 1'b1, 1'b0);
    run(4'd0, 8'd128, 8'd128, 8'd0, 1'b1, 1'b1);
    run(4'd1, 8'd5, 8'd7, 8'd254, 1'b1, 1'b0);
    run(4'd1, 8'd7, 8'd7, 8'd0, 1'b0, 1'b0);
    run(4'd2, 8'hf0, 8'h3c, 8'h30, 1'b0, 1'b0);
    run(4'd3, 8'hf0, 8'h3c, 8'hfc, 1'b0, 1'b0);
    run(4'd4, 8'hf0, 8'h3c, 8'hcc, 1'b0, 1'b0);
    run(4'd5, 8'hf0, 8'h3c, 8'h0f, 1'b0, 1'b0);
    run(4'd6, 8'h81, 8'd1, 8'h02, 1'b1, 1'b0);
    run(4'd6, 8'h81, 8'd8, 8'h81, 1'b0, 1'b0);
    run(4'd7, 8'h81, 8'd7, 8'h01, 1'b0, 1'b0);
    expect_bit("sat_sticky before any saturation", sat_sticky, 1'b0);
    run(4'd8, 8'd100, 8'd100, 8'd127, 1'b0, 1'b1);
    expect_bit("sat_sticky", sat_sticky, 1'b1);
    run(4'd9, 8'd10, 8'd3, 8'd7, 1'b0, 1'b0);
    run(4'd10, 8'h81, 8'd1, 8'h03, 1'b1, 1'b0);
    run(4'd11, 8'h81, 8'd1, 8'hc0, 1'b1, 1'b0);
    run(4'd12, 8'd1, 8'hff, 8'hff, 1'b1, 1'b0);
    run(4'd13, 8'hff, 8'd0, 8'd8, 1'b0, 1'b0);
    run(4'd15, 8'hff, 8'hff, 8'd0, 1'b0, 1'b0);
    expect_bit("illegal", illegal, 1'b1);
    if (errors == 0) $display("PASS");
    else $fatal(1, "FAIL: %0d checks failed", errors);
    $finish;
  end
endmodule
