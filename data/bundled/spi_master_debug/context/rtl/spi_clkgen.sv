// Divider of the SPI master: one tick per half period of the SPI clock.
module spi_clkgen (
  input  logic       clk,
  input  logic       rst_n,
  input  logic       start,  // restart the count with a new divisor
  input  logic       run,
  input  logic [7:0] div,
  output logic       tick
);

  logic [7:0] count;

  assign tick = run && (count == 8'd0);

  always_ff @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      count <= 8'd0;
    end else if (start) begin
      count <= div + 8'd1;
    end else if (run) begin
      count <= tick ? div : count - 8'd1;
    end
  end

endmodule
