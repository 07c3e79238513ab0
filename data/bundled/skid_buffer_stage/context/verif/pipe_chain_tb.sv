`timescale 1ns / 1ps

// Sends numbered words through a chain of two stages: at full speed, into a stopped receiver, at random, with a flush.
module pipe_chain_tb;
  localparam WIDTH = 16;
  localparam DEPTH = 2;

  logic clk = 1'b0;
  logic rst_n = 1'b0;
  logic flush = 1'b0;
  logic in_valid = 1'b0;
  logic [WIDTH-1:0] in_data = '0;
  logic out_ready = 1'b0;
  logic in_ready, out_valid;
  logic [WIDTH-1:0] out_data;
  logic [$clog2(2*DEPTH+1)-1:0] occupancy;

  integer errors = 0;
  integer sent = 0;
  integer received = 0;
  integer held = 0;
  logic [WIDTH-1:0] next_word = 0;
  integer cycle;

  pipe_chain #(.WIDTH(WIDTH), .DEPTH(DEPTH)) dut (
    .clk(clk), .rst_n(rst_n), .flush(flush), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data),
    .out_valid(out_valid), .out_ready(out_ready), .out_data(out_data), .occupancy(occupancy)
  );

  always #5 clk = ~clk;

  task automatic check(input string what, input integer got, input integer want);
    if (got !== want) begin
      errors = errors + 1;
      $display("FAIL: at %0t: %s is %0d, expected %0d", $time, what, got, want);
    end
  endtask

  // One cycle. Words are numbered as they are sent, so the next one out must be `next_word`.
  task automatic cycle_with(input logic offer, input logic take, input logic drop);
    logic ready_before;
    logic valid_before;
    ready_before = in_ready;
    valid_before = out_valid;
    in_valid = offer;
    in_data = sent;
    out_ready = take;
    flush = drop;
    #1 check("in_ready within the cycle", in_ready, ready_before);
    check("out_valid within the cycle", out_valid, valid_before);
    if (offer && in_ready) begin
      sent = sent + 1;
      held = held + 1;
    end
    if (take && out_valid) begin
      check("out_data", out_data, next_word);
      next_word = next_word + 1;
      received = received + 1;
      held = held - 1;
    end
    if (drop) begin
      held = 0;
      next_word = sent;
    end
    @(negedge clk);
    check("occupancy", occupancy, held);
  endtask

  initial begin
    repeat (2) @(negedge clk);
    check("in_ready in reset", in_ready, 0);
    check("out_valid in reset", out_valid, 0);
    rst_n = 1'b1;
    @(negedge clk);
    check("in_ready after reset", in_ready, 1);
    for (cycle = 0; cycle < 20; cycle = cycle + 1) cycle_with(1'b1, 1'b1, 1'b0);
    check("words received in 20 cycles", received, 20 - DEPTH);
    for (cycle = 0; cycle < 10; cycle = cycle + 1) cycle_with(1'b1, 1'b0, 1'b0);
    check("words held by a stopped chain", held, 2 * DEPTH);
    cycle_with(1'b1, 1'b0, 1'b1);
    for (cycle = 0; cycle < 400; cycle = cycle + 1) cycle_with($random, $random, ($random & 31) == 0);
    if (errors == 0) $display("PASS");
    else $fatal(1, "FAIL: %0d checks failed", errors);
    $finish;
  end
endmodule
