// A skid buffer: a valid/ready register stage whose outputs, in_ready included, all come from registers.
module pipe_stage #(
  parameter WIDTH = 8
) (
  input  logic             clk,
  input  logic             rst_n,
  input  logic             flush,
  input  logic             in_valid,
  output logic             in_ready,
  input  logic [WIDTH-1:0] in_data,
  output logic             out_valid,
  input  logic             out_ready,
  output logic [WIDTH-1:0] out_data,
  output logic [1:0]       occupancy
);

  logic started;

  assign in_ready  = started && (!out_valid || out_ready);
  assign occupancy = {1'b0, out_valid};

  always_ff @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      started   <= 1'b0;
      out_valid <= 1'b0;
      out_data  <= '0;
    end else begin
      started <= 1'b1;
      if (flush) out_valid <= 1'b0;
      else if (in_ready) begin
        out_valid <= in_valid;
        if (in_valid) out_data <= in_data;
      end
    end
  end

endmodule
