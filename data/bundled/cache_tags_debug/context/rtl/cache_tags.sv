// Tag store of a four-way cache: one request in work (the slot) and one response waiting.
module cache_tags #(
  parameter SETS  = 8,
  parameter TAG_W = 10
) (
  input  logic                    clk,
  input  logic                    rst,
  input  logic                    req_valid,
  output logic                    req_ready,
  input  logic [1:0]              req_op,
  input  logic [$clog2(SETS)-1:0] req_set,
  input  logic [TAG_W-1:0]        req_tag,
  output logic                    resp_valid,
  input  logic                    resp_ready,
  output logic                    resp_hit,
  output logic [1:0]              resp_way,
  output logic                    evict_valid,
  output logic                    evict_dirty,
  output logic [TAG_W-1:0]        evict_tag
);

  localparam SET_W = $clog2(SETS);

  localparam logic [1:0] OP_WRITE      = 2'd1;
  localparam logic [1:0] OP_INVALIDATE = 2'd2;
  localparam logic [1:0] OP_FLUSH      = 2'd3;

  localparam logic [SET_W-1:0] LAST_SET = SETS - 2;

  // The slot
  logic             slot_valid;
  logic [1:0]       slot_op;
  logic [SET_W-1:0] slot_set;
  logic [TAG_W-1:0] slot_tag;

  // Progress of a flush
  logic [SET_W-1:0] walk;
  logic             walk_dirty;

  logic             free, step, finish;
  logic             is_flush, is_invalidate, is_access;
  logic             hit, has_invalid, set_dirty, line_valid, line_dirty;
  logic [1:0]       hit_way, invalid_way, lru_way, way;
  logic [TAG_W-1:0] line_tag;
  logic [SET_W-1:0] set;

  assign is_flush      = slot_op == OP_FLUSH;
  assign is_invalidate = slot_op == OP_INVALIDATE;
  assign is_access     = !is_flush && !is_invalidate;

  assign free      = !resp_valid || resp_ready;
  assign step      = slot_valid && free;
  assign finish    = step && (!is_flush || walk == LAST_SET);
  assign req_ready = !slot_valid || finish;

  assign set = is_flush ? walk : slot_set;
  assign way = hit ? hit_way : (has_invalid ? invalid_way : lru_way);

  tag_array #(
    .SETS (SETS),
    .TAG_W(TAG_W)
  ) array (
    .clk        (clk),
    .rst        (rst),
    .set        (set),
    .tag        (slot_tag),
    .hit        (hit),
    .hit_way    (hit_way),
    .has_invalid(has_invalid),
    .invalid_way(invalid_way),
    .set_dirty  (set_dirty),
    .way        (way),
    .line_valid (line_valid),
    .line_dirty (line_dirty),
    .line_tag   (line_tag),
    .fill       (slot_valid && is_access && !hit),
    .write      (slot_valid && slot_op == OP_WRITE),
    .invalidate (step && is_invalidate && hit),
    .clear_set  (step && is_flush)
  );

  lru_unit #(
    .SETS(SETS)
  ) lru (
    .clk      (clk),
    .rst      (rst),
    .set      (req_set),
    .touch    (slot_valid && is_access),
    .touch_way(way),
    .lru_way  (lru_way)
  );

  // Slot and flush
  always_ff @(posedge clk) begin
    if (rst) begin
      slot_valid <= 1'b0;
      slot_op    <= 2'd0;
      slot_set   <= '0;
      slot_tag   <= '0;
      walk       <= '0;
      walk_dirty <= 1'b0;
    end else begin
      if (step && is_flush) begin
        walk       <= walk + 1'b1;
        walk_dirty <= walk_dirty || set_dirty;
      end
      if (req_valid && req_ready) begin
        slot_valid <= 1'b1;
        slot_op    <= req_op;
        slot_set   <= req_set;
        slot_tag   <= req_tag;
        walk       <= '0;
        walk_dirty <= 1'b0;
      end else if (finish) begin
        slot_valid <= 1'b0;
      end
    end
  end

  // Response register
  always_ff @(posedge clk) begin
    if (rst) begin
      resp_valid  <= 1'b0;
      resp_hit    <= 1'b0;
      resp_way    <= 2'd0;
      evict_valid <= 1'b0;
      evict_dirty <= 1'b0;
      evict_tag   <= '0;
    end else if (finish) begin
      resp_valid  <= 1'b1;
      resp_hit    <= 1'b0;
      resp_way    <= 2'd0;
      evict_valid <= 1'b0;
      evict_dirty <= 1'b0;
      evict_tag   <= '0;
      if (is_flush) begin
        evict_dirty <= walk_dirty || set_dirty;
      end else if (is_access || hit) begin
        resp_hit <= hit;
        resp_way <= way;
        if (line_valid && (is_invalidate || !hit)) begin
          evict_valid <= 1'b1;
          evict_dirty <= line_dirty;
          evict_tag   <= line_tag;
        end
      end
    end else if (resp_ready) begin
      resp_valid <= 1'b0;
    end
  end

endmodule
