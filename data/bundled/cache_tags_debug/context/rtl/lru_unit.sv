// True LRU for four ways: each way has an age from 0 to 3.
module lru_unit #(
  parameter SETS = 8
) (
  input  logic                    clk,
  input  logic                    rst,
  input  logic [$clog2(SETS)-1:0] set,
  input  logic                    touch,
  input  logic [1:0]              touch_way,
  output logic [1:0]              lru_way
);

  // Four ages of two bits per set; age 0 is the most recent.
  logic [7:0] ages[0:SETS-1];
  logic [7:0] now;
  logic [7:0] next;
  integer     s;
  integer     w;
  integer     v;

  assign now = ages[set];

  always_comb begin
    next = now;
    for (w = 0; w < 4; w = w + 1) begin
      if (w == touch_way) next[2*w+:2] = 2'd0;
      else if (now[2*w+:2] != 2'd3) next[2*w+:2] = now[2*w+:2] + 2'd1;
    end
  end

  always_comb begin
    lru_way = 2'd0;
    for (v = 0; v < 4; v = v + 1) begin
      if (now[2*v+:2] == 2'd3) lru_way = v[1:0];
    end
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      for (s = 0; s < SETS; s = s + 1) ages[s] <= 8'd0;
    end else if (touch) begin
      ages[set] <= next;
    end
  end

endmodule
