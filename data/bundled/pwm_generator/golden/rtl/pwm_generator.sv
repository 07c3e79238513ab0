module pwm_generator #(
  parameter WIDTH = 8
) (
  input  logic             clk,
  input  logic             rst_n,
  input  logic             enable,
  input  logic [WIDTH-1:0] top,
  input  logic [WIDTH-1:0] duty,
  output logic             pwm_out,
  output logic             period_start
);

  logic             running;
  logic [WIDTH-1:0] count;
  logic [WIDTH-1:0] top_q;
  logic [WIDTH-1:0] duty_q;
  logic [WIDTH-1:0] count_next;

  // Cannot overflow where it is used: count is below top_q there.
  assign count_next = count + 1'b1;

  always_ff @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      running      <= 1'b0;
      count        <= '0;
      top_q        <= '0;
      duty_q       <= '0;
      pwm_out      <= 1'b0;
      period_start <= 1'b0;
    end else if (!enable) begin
      running      <= 1'b0;
      count        <= '0;
      pwm_out      <= 1'b0;
      period_start <= 1'b0;
    end else if (!running || count == top_q) begin
      running      <= 1'b1;
      count        <= '0;
      top_q        <= top;
      duty_q       <= duty;
      pwm_out      <= (duty != '0);
      period_start <= 1'b1;
    end else begin
      count        <= count_next;
      pwm_out      <= (count_next < duty_q);
      period_start <= 1'b0;
    end
  end

endmodule
