`timescale 1ns / 1ps

// A directed walk through the operations, one request at a time, and some requests with a slow receiver.
module cache_tags_tb;
  localparam SETS = 4;
  localparam TAG_W = 6;
  localparam [1:0] READ = 2'd0, WRITE = 2'd1, INVALIDATE = 2'd2, FLUSH = 2'd3;

  logic clk = 1'b0;
  logic rst = 1'b1;
  logic req_valid = 1'b0;
  logic [1:0] req_op = 2'd0;
  logic [1:0] req_set = 2'd0;
  logic [TAG_W-1:0] req_tag = '0;
  logic resp_ready = 1'b1;
  logic req_ready, resp_valid, resp_hit, evict_valid, evict_dirty;
  logic [1:0] resp_way;
  logic [TAG_W-1:0] evict_tag;
  integer errors = 0;
  integer number = 0;
  integer wait_cycles;
  integer i;

  cache_tags #(.SETS(SETS), .TAG_W(TAG_W)) dut (
    .clk(clk), .rst(rst), .req_valid(req_valid), .req_ready(req_ready), .req_op(req_op), .req_set(req_set),
    .req_tag(req_tag), .resp_valid(resp_valid), .resp_ready(resp_ready), .resp_hit(resp_hit), .resp_way(resp_way),
    .evict_valid(evict_valid), .evict_dirty(evict_dirty), .evict_tag(evict_tag)
  );

  always #5 clk = ~clk;

  task automatic check(input string what, input integer got, input integer want);
    if (got !== want) begin
      errors = errors + 1;
      $display("FAIL: at %0t, request %0d: %s is %0d, expected %0d", $time, number, what, got, want);
    end
  endtask

  // One request and its response. `hit`, `way` and the evicted line are what to expect.
  task automatic request(input [1:0] op, input [1:0] set, input [TAG_W-1:0] tag, input hit, input [1:0] way,
                         input ev, input ed, input [TAG_W-1:0] et);
    number = number + 1;
    req_valid = 1'b1;
    req_op = op;
    req_set = set;
    req_tag = tag;
    #1 check("req_ready", req_ready, 1);
    @(negedge clk);
    req_valid = 1'b0;
    req_set = ~set;
    wait_cycles = 0;
    do begin
      @(negedge clk);
      wait_cycles = wait_cycles + 1;
    end while (resp_valid !== 1'b1 && wait_cycles < 100);
    check("cycles until the response", wait_cycles, (op == FLUSH) ? SETS : 1);
    check("resp_hit", resp_hit, hit);
    check("resp_way", resp_way, way);
    check("evict_valid", evict_valid, ev);
    check("evict_dirty", evict_dirty, ed);
    check("evict_tag", evict_tag, et);
  endtask

  // Two misses to one set while nobody takes the responses for a while.
  task automatic slow_receiver(input [1:0] set, input [TAG_W-1:0] tag);
    number = number + 2;
    resp_ready = 1'b0;
    req_valid = 1'b1;
    req_op = READ;
    req_set = set;
    req_tag = tag;
    @(negedge clk);
    req_tag = tag + 1;
    @(negedge clk);
    req_valid = 1'b0;
    repeat (3) @(negedge clk);
    check("req_ready while the response waits", req_ready, 0);
    check("resp_hit of the first", resp_hit, 0);
    resp_ready = 1'b1;
    @(negedge clk);
    check("resp_valid of the second", resp_valid, 1);
    check("resp_hit of the second", resp_hit, 0);
    @(negedge clk);
    check("resp_valid after both", resp_valid, 0);
  endtask

  initial begin
    repeat (2) @(negedge clk);
    rst = 1'b0;
    // Fill set 1; way 0 becomes dirty.
    request(WRITE, 2'd1, 6'd10, 1'b0, 2'd0, 1'b0, 1'b0, 6'd0);
    request(READ, 2'd1, 6'd11, 1'b0, 2'd1, 1'b0, 1'b0, 6'd0);
    request(READ, 2'd1, 6'd12, 1'b0, 2'd2, 1'b0, 1'b0, 6'd0);
    request(READ, 2'd1, 6'd13, 1'b0, 2'd3, 1'b0, 1'b0, 6'd0);
    // Use way 0 again, so that way 1 is replaced first.
    request(READ, 2'd1, 6'd10, 1'b1, 2'd0, 1'b0, 1'b0, 6'd0);
    request(READ, 2'd1, 6'd14, 1'b0, 2'd1, 1'b1, 1'b0, 6'd11);
    request(WRITE, 2'd1, 6'd12, 1'b1, 2'd2, 1'b0, 1'b0, 6'd0);
    request(READ, 2'd1, 6'd15, 1'b0, 2'd3, 1'b1, 1'b0, 6'd13);
    request(READ, 2'd1, 6'd16, 1'b0, 2'd0, 1'b1, 1'b1, 6'd10);
    // The line that took the place of a dirty one is clean.
    request(INVALIDATE, 2'd1, 6'd16, 1'b1, 2'd0, 1'b1, 1'b0, 6'd16);
    request(INVALIDATE, 2'd1, 6'd16, 1'b0, 2'd0, 1'b0, 1'b0, 6'd0);
    request(READ, 2'd1, 6'd16, 1'b0, 2'd0, 1'b0, 1'b0, 6'd0);
    // Every set is empty after a flush.
    for (i = 0; i < SETS; i = i + 1) request(READ, i[1:0], 6'd40, 1'b0, (i == 1) ? 2'd1 : 2'd0, i == 1, 1'b0,
                                             (i == 1) ? 6'd14 : 6'd0);
    request(FLUSH, 2'd0, 6'd0, 1'b0, 2'd0, 1'b0, 1'b1, 6'd0);
    for (i = 0; i < SETS; i = i + 1) request(READ, i[1:0], 6'd40, 1'b0, 2'd0, 1'b0, 1'b0, 6'd0);
    slow_receiver(2'd2, 6'd50);
    if (errors == 0) $display("PASS");
    else $fatal(1, "FAIL: %0d checks failed", errors);
    $finish;
  end
endmodule
