// Valid bits, dirty bits and tags of all lines; one set is looked at in a cycle.
module tag_array #(
  parameter SETS  = 8,
  parameter TAG_W = 10
) (
  input  logic                    clk,
  input  logic                    rst,
  input  logic [$clog2(SETS)-1:0] set,
  input  logic [TAG_W-1:0]        tag,
  // Look-up
  output logic                    hit,
  output logic [1:0]              hit_way,
  output logic                    has_invalid,
  output logic [1:0]              invalid_way,
  output logic                    set_dirty,     // some valid line of the set is dirty
  // The line of one way
  input  logic [1:0]              way,
  output logic                    line_valid,
  output logic                    line_dirty,
  output logic [TAG_W-1:0]        line_tag,
  // Changes, at the next edge
  input  logic                    fill,          // put the tag into the way
  input  logic                    write,         // make the way dirty
  input  logic                    invalidate,    // make the way invalid
  input  logic                    clear_set      // make all ways invalid
);

  logic [3:0]       valid[0:SETS-1];
  logic [3:0]       dirty[0:SETS-1];
  logic [TAG_W-1:0] tags [0:4*SETS-1];

  logic [3:0] valid_now;
  logic [3:0] dirty_now;
  logic [3:0] match;
  integer     i;
  integer     s;

  assign valid_now = valid[set];
  assign dirty_now = dirty[set];

  genvar w;
  generate
    for (w = 0; w < 4; w = w + 1) begin : g_match
      assign match[w] = tags[{set, w[1:0]}] == tag;
    end
  endgenerate

  assign hit         = |match;
  assign has_invalid = !(&valid_now);
  assign set_dirty   = |(valid_now & dirty_now);
  assign line_valid  = valid_now[way];
  assign line_dirty  = dirty_now[way];
  assign line_tag    = tags[{set, way}];

  // Downwards, so that the lowest number is what remains.
  always_comb begin
    hit_way     = 2'd0;
    invalid_way = 2'd0;
    for (i = 3; i >= 0; i = i - 1) begin
      if (match[i]) hit_way = i[1:0];
      if (!valid_now[i]) invalid_way = i[1:0];
    end
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      for (s = 0; s < SETS; s = s + 1) begin
        valid[s] <= 4'b0000;
        dirty[s] <= 4'b0000;
      end
      for (s = 0; s < 4 * SETS; s = s + 1) tags[s] <= '0;
    end else if (clear_set) begin
      valid[set] <= 4'b0000;
    end else if (invalidate) begin
      valid[set][way] <= 1'b0;
    end else if (fill) begin
      valid[set][way]  <= 1'b1;
      tags[{set, way}] <= tag;
      if (write) dirty[set][way] <= 1'b1;
    end else if (write) begin
      dirty[set][way] <= 1'b1;
    end
  end

endmodule
