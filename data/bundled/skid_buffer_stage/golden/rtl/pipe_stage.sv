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

  // Holds the word that arrives while the output register is blocked.
  logic             skid_valid;
  logic [WIDTH-1:0] skid_data;

  logic take;
  assign take = in_valid && in_ready;

  assign occupancy = {1'b0, out_valid} + {1'b0, skid_valid};

  always_ff @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      in_ready   <= 1'b0;
      out_valid  <= 1'b0;
      out_data   <= '0;
      skid_valid <= 1'b0;
      skid_data  <= '0;
    end else if (flush) begin
      in_ready   <= 1'b1;
      out_valid  <= 1'b0;
      skid_valid <= 1'b0;
    end else if (!out_valid || out_ready) begin
      // The output register is free for the next word; the one in the skid register is older than any new one.
      in_ready   <= 1'b1;
      skid_valid <= 1'b0;
      if (skid_valid) begin
        out_valid <= 1'b1;
        out_data  <= skid_data;
      end else begin
        out_valid <= take;
        if (take) out_data <= in_data;
      end
    end else begin
      if (take) begin
        skid_valid <= 1'b1;
        skid_data  <= in_data;
      end
      in_ready <= !(skid_valid || take);
    end
  end

endmodule
