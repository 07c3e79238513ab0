// Multiplier-accumulator with two pipeline steps: multiply, then accumulate.
module mac_unit #(
  parameter A_W   = 12,
  parameter B_W   = 10,
  parameter ACC_W = 25
) (
  input  logic                    clk,
  input  logic                    rst,
  input  logic                    en,     // a and b are a pair of operands
  input  logic                    first,  // they begin a new sum
  input  logic signed [A_W-1:0]   a,
  input  logic signed [B_W-1:0]   b,
  output logic signed [ACC_W-1:0] acc
);

  logic                      product_en;
  logic                      product_first;
  logic signed [A_W+B_W-1:0] product;

  always_ff @(posedge clk) begin
    if (rst) begin
      product_en    <= 1'b0;
      product_first <= 1'b0;
      product       <= '0;
      acc           <= '0;
    end else begin
      product_en    <= en;
      product_first <= first;
      if (en) product <= a * b;
      if (product_en) begin
        if (product_first) acc <= product;
        else acc <= acc + product;
      end
    end
  end

endmodule
