`timescale 1ns / 1ps

// Sends one stream, in both overlap modes, and compares the number and the places of the matches.
module sequence_detector_tb;
  localparam LENGTH = 16;
  // Sent from the left: 1011011010110110
  localparam [LENGTH-1:0] STREAM = 16'b1011_0110_1011_0110;

  logic clk = 1'b0;
  logic rst = 1'b1;
  logic bit_valid = 1'b0;
  logic bit_in = 1'b0;
  logic overlap = 1'b1;
  logic clear = 1'b0;
  logic match, match_q;
  logic [2:0] progress;
  logic [7:0] match_count;
  integer errors = 0;
  integer i;
  logic [LENGTH-1:0] seen;

  sequence_detector dut (
    .clk(clk), .rst(rst), .bit_valid(bit_valid), .bit_in(bit_in), .overlap(overlap), .clear(clear),
    .match(match), .match_q(match_q), .progress(progress), .match_count(match_count)
  );

  always #5 clk = ~clk;

  task automatic check(input string what, input integer got, input integer want);
    if (got !== want) begin
      errors = errors + 1;
      $display("FAIL: at %0t: %s is %0d, expected %0d", $time, what, got, want);
    end
  endtask

  // Sends STREAM with a pause after each bit and collects `match`, one bit of `seen` per bit sent.
  task automatic send_stream(input logic mode);
    rst = 1'b1;
    bit_valid = 1'b0;
    @(negedge clk);
    rst = 1'b0;
    overlap = mode;
    check("match_count after reset", match_count, 0);
    check("progress after reset", progress, 0);
    for (i = LENGTH - 1; i >= 0; i = i - 1) begin
      bit_valid = 1'b1;
      bit_in = STREAM[i];
      #1 seen[i] = match;
      @(negedge clk);
      check("match_q", match_q, seen[i]);
      bit_valid = 1'b0;
      bit_in = ~bit_in;
      #1 check("match without a bit", match, 0);
      @(negedge clk);
    end
  endtask

  initial begin
    @(negedge clk);
    send_stream(1'b1);
    check("places of matches, overlapping", seen, 16'b0000_1001_0000_1001);
    check("match_count, overlapping", match_count, 4);
    check("progress at the end, overlapping", progress, 2);
    send_stream(1'b0);
    check("places of matches, not overlapping", seen, 16'b0000_1000_0000_1000);
    check("match_count, not overlapping", match_count, 2);
    clear = 1'b1;
    @(negedge clk);
    check("match_count after clear", match_count, 0);
    if (errors == 0) $display("PASS");
    else $fatal(1, "FAIL: %0d checks failed", errors);
    $finish;
  end
endmodule
