module pcie_endpoint #(
    parameter ADDR_WIDTH = 64,
    parameter DATA_WIDTH = 128
) (
    input  logic                  clk,
    input  logic                  rst_n,
    input  logic [DATA_WIDTH-1:0] pcie_rx_tlp,
    input  logic                  pcie_rx_valid,
    output logic                  pcie_rx_ready,
    output logic [DATA_WIDTH-1:0] pcie_tx_tlp,
    output logic                  pcie_tx_valid,
    input  logic                  pcie_tx_ready,
    input  logic                  dma_request,
    output logic                  dma_complete,
    output logic                  msix_interrupt
);
    typedef enum logic [1:0] {IDLE, RECEIVE, PROCESS, SEND_RESPONSE} transaction_t;
    typedef enum logic [1:0] {DLL_IDLE, TRANSMIT, WAIT_ACK, RETRY} link_t;
    typedef enum logic [1:0] {DMA_IDLE, READ_DESC, FETCH_DATA, WRITE_DMA} dma_t;
    transaction_t transaction;
    link_t        link;
    dma_t         dma;

    logic [DATA_WIDTH-1:0] tlp_decoded_data, dma_data;
    logic [ADDR_WIDTH-1:0] dma_address;
    logic                  tlp_valid;

    assign pcie_rx_ready = transaction == IDLE;
    assign pcie_tx_valid = link == TRANSMIT;
    assign pcie_tx_tlp = tlp_decoded_data;

    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n) begin
            transaction <= IDLE;
            tlp_valid <= 0;
            tlp_decoded_data <= 0;
        end else
            case (transaction)
                IDLE: if (pcie_rx_valid) begin
                    tlp_decoded_data <= pcie_rx_tlp;
                    transaction <= RECEIVE;
                end
                RECEIVE: begin
                    tlp_valid <= 1;
                    transaction <= PROCESS;
                end
                PROCESS: transaction <= SEND_RESPONSE;
                SEND_RESPONSE: if (link == TRANSMIT && pcie_tx_ready) begin
                    tlp_valid <= 0;
                    transaction <= IDLE;
                end
            endcase

    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n) link <= DLL_IDLE;
        else
            case (link)
                DLL_IDLE: if (transaction == SEND_RESPONSE && tlp_valid) link <= TRANSMIT;
                TRANSMIT: if (pcie_tx_ready) link <= WAIT_ACK;
                WAIT_ACK: link <= DLL_IDLE;
                RETRY: link <= TRANSMIT;
            endcase

    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n) begin
            dma <= DMA_IDLE;
            dma_complete <= 0;
            dma_address <= 0;
            dma_data <= 0;
        end else begin
            dma_complete <= dma == WRITE_DMA;
            case (dma)
                DMA_IDLE: if (dma_request) dma <= READ_DESC;
                READ_DESC: begin
                    dma_address <= tlp_decoded_data[ADDR_WIDTH-1:0];
                    dma <= FETCH_DATA;
                end
                FETCH_DATA: begin
                    dma_data <= tlp_decoded_data;
                    dma <= WRITE_DMA;
                end
                WRITE_DMA: dma <= DMA_IDLE;
            endcase
        end

    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n) msix_interrupt <= 0;
        else msix_interrupt <= dma_complete;
endmodule
