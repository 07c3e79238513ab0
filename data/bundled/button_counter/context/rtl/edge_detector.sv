// Shows the edges of `level`: combinational pulses in the first cycle of the new level.
module edge_detector (
    input  logic clk,
    input  logic rst,  // synchronous, active high
    input  logic level,
    output logic rose,
    output logic fell
);

    logic previous;

    always_ff @(posedge clk) begin
        if (rst) previous <= 1'b0;
        else previous <= level;
    end

    assign rose = level & ~previous;
    assign fell = ~level & previous;

endmodule
